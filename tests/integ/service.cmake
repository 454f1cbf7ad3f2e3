# Whole services, started by the launcher (service.py). Fake stages but for *_smollm2 and *_demo; all but the demo run in the
# ASan build too, where everything is given more time.
set(service_slack 1)
if(SLUICE_SANITIZE)
  set(service_slack 4)
endif()

# sluice_service_test(NAME TIMEOUT LABELS...): tests/integ/NAME.py as one test. The interpreter is chosen when it runs.
function(sluice_service_test name timeout)
  add_test(NAME integ_${name} COMMAND sh -c "exec \"\${SLUICE_TEST_PYTHON:-/usr/bin/python3}\" -B ${name}.py"
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  math(EXPR timeout "${timeout} * ${service_slack}")
  set_tests_properties(integ_${name} PROPERTIES LABELS "${ARGN}" TIMEOUT ${timeout} SKIP_RETURN_CODE 77
    ENVIRONMENT "SLUICE_BIN=${CMAKE_BINARY_DIR}/bin;SLUICE_TEST_SLACK=${service_slack}")
endfunction()

sluice_service_test(test_service_load 120 service asan)
sluice_service_test(test_service_clients 120 service asan)
sluice_service_test(test_service_stream 120 service asan)
sluice_service_test(test_service_faults 120 service asan)
sluice_service_test(test_service_end 150 service asan)
sluice_service_test(test_service_smollm2 240 service asan)
sluice_service_test(test_service_demo 240 service)
