# Whole services, started by tests/lib/fake_service or the launcher (service.py), and the failure cases.
# service_test(NAME FILE ARGUMENT TIER TIMEOUT ALONE LABELS...): one Python process, `FILE [ARGUMENT]`. The interpreter is chosen
# when it runs. Stages that sleep leave both cores free, so services run side by side; ALONE is for those that compute, or that
# judge time closer than a busy machine keeps it.
function(service_test name file argument tier timeout alone)
  add_test(NAME ${name} COMMAND sh -c "exec \"\${SLUICE_TEST_PYTHON:-/usr/bin/python3}\" -B ${file}.py ${argument}"
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set(service_slack 1)
  if(SLUICE_SANITIZE)
    set(service_slack 4)
  endif()
  math(EXPR timeout "${timeout} * ${service_slack}")
  set_tests_properties(${name} PROPERTIES LABELS "service;${tier};${ARGN}" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ${alone}
    ENVIRONMENT "SLUICE_BIN=${CMAKE_BINARY_DIR}/bin;SLUICE_TEST_SLACK=${service_slack}")
endfunction()

# sluice_service_test(NAME TIER TIMEOUT [ALONE] [LABELS...]): tests/integ/NAME.py as one test. asan: in the ASan build too, where
# everything is given more time.
function(sluice_service_test name tier timeout)
  cmake_parse_arguments(A "ALONE" "" "" ${ARGN})
  service_test(integ_${name} ${name} "" ${tier} ${timeout} ${A_ALONE} ${A_UNPARSED_ARGUMENTS})
endfunction()

# sluice_cases(FILE): each function of FILE.py in this folder with `@case(...)` above it (runner.py) as a test of its own, integ_FUNCTION
# (cluster_FUNCTION in tests/cluster).
# The fast ones on fake stages that judge no gaps run in the ASan build too.
function(sluice_cases file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file}.py)
  file(STRINGS ${CMAKE_CURRENT_SOURCE_DIR}/${file}.py lines REGEX "^(@case\\(|def (fc|soak|cluster)_)")
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  set(about "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^@case")
      set(about "${line}")
      continue()
    endif()
    if(NOT about MATCHES "^@case\\(\"(fast|full|nightly)\"")
      message(FATAL_ERROR "${folder}/${file}.py: no @case(\"TIER\", ...) in the line above '${line}'")
    endif()
    set(tier ${CMAKE_MATCH_1})
    set(seconds 60)
    if(about MATCHES "seconds=([0-9]+)")
      set(seconds ${CMAKE_MATCH_1})
    endif()
    set(alone FALSE)
    set(labels case)
    if(about MATCHES "gaps=True|real=True")
      set(alone TRUE)
    endif()
    if(about MATCHES "real=True")
      list(APPEND labels real)
    elseif(tier STREQUAL "fast" AND NOT alone) # gaps say nothing there
      list(APPEND labels asan)
    endif()
    string(REGEX REPLACE "^def ([a-zA-Z0-9_]+).*" "\\1" name "${line}")
    string(REGEX REPLACE "^cluster_" "" short ${name})
    service_test(${folder}_${short} ${file} ${name} ${tier} ${seconds} ${alone} ${labels})
    set(about "")
  endforeach()
endfunction()

sluice_service_test(test_fake_service fast 120 ALONE)
sluice_service_test(test_service_load fast 120 asan)
sluice_service_test(test_service_stream fast 120 asan)
sluice_service_test(test_service_faults fast 120 asan)
sluice_service_test(test_service_end fast 200 asan)
sluice_service_test(test_cli_bench fast 150 ALONE)
sluice_service_test(test_service_smollm2 fast 240 ALONE asan)
sluice_service_test(test_service_demo fast 240 ALONE)
service_test(integ_models_tiny test_service_models test_tiny full 120 FALSE)
service_test(integ_models_qwen test_service_models test_qwen full 300 TRUE)
service_test(integ_models_gemma test_service_models test_gemma full 300 TRUE)

file(GLOB case_files RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS test_fc_*.py test_soak.py test_chaos.py)
foreach(file IN LISTS case_files)
  cmake_path(REMOVE_EXTENSION file)
  sluice_cases(${file})
endforeach()
