# Promise 4 of the design on the model side: the same bits however work is cut.
set(TRANSCRIPT ${CMAKE_SOURCE_DIR}/tests/lib/chain.c ${CMAKE_SOURCE_DIR}/tests/lib/transcript.c)
sluice_test(test_exact_tiny LABEL model TIMEOUT 120 SOURCES test_exact_tiny.c ${TRANSCRIPT} DEPS sluice_model_compute)
sluice_test(test_exact_smollm2 LABEL model TIMEOUT 600 SOURCES test_exact_smollm2.c ${TRANSCRIPT} DEPS sluice_model_compute)
sluice_test(test_quality_smollm2 LABEL model TIMEOUT 300
  SOURCES test_quality_smollm2.c ${CMAKE_SOURCE_DIR}/tests/lib/chain.c DEPS sluice_model_compute PkgConfig::JANSSON)
# Promise: a prefix that was kept changes no bit.
sluice_test(test_exact_prefix LABEL model TIMEOUT 300 SOURCES test_exact_prefix.c DEPS sluice_test_pipeline sluice_model_compute)
if(CMOCKA_FOUND)
  add_test(NAME test_exact_prefix_smollm2 COMMAND test_exact_prefix smollm2)
  set_tests_properties(test_exact_prefix_smollm2 PROPERTIES LABELS "model;full" TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
