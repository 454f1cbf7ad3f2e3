# Promise 4 of the design on the model side: the same bits however work is cut. Each program runs over what the fast tier has of
# it; with an argument over the rest: `full` (the other tiny models), the name of a real model.
set(LIB ${CMAKE_SOURCE_DIR}/tests/lib)
set(TRANSCRIPT ${LIB}/chain.c ${LIB}/transcript.c ${LIB}/models.c)

# model_run(NAME PROGRAM TIER TIMEOUT ARGUMENTS...): another run of a program as a test of its own.
function(model_run name program tier timeout)
  if(CMOCKA_FOUND)
    add_test(NAME ${name} COMMAND ${program} ${ARGN})
    set_tests_properties(${name} PROPERTIES LABELS "model;${tier}" TIMEOUT ${timeout} SKIP_RETURN_CODE 77)
  endif()
endfunction()

sluice_test(test_exact_tiny LABEL model TIMEOUT 120 SOURCES test_exact_tiny.c ${TRANSCRIPT} DEPS sluice_model_compute)
model_run(test_exact_tiny_full test_exact_tiny full 240 full)
sluice_test(test_exact_real LABEL model TIMEOUT 600 SOURCES test_exact_real.c ${TRANSCRIPT} DEPS sluice_model_compute)
model_run(test_exact_qwen test_exact_real full 600 qwen2.5)
model_run(test_exact_gemma test_exact_real full 600 gemma3)
model_run(test_exact_qwen_long test_exact_real nightly 1800 qwen2.5 long)
model_run(test_exact_gemma_long test_exact_real nightly 1800 gemma3 long)
sluice_test(test_quality LABEL model TIMEOUT 300 SOURCES test_quality.c ${LIB}/chain.c ${LIB}/models.c
  DEPS sluice_model_compute PkgConfig::JANSSON)
sluice_test(test_quality_tiny LABEL component TIMEOUT 120 SOURCES test_quality_tiny.c ${LIB}/chain.c ${LIB}/models.c ${LIB}/tiny.c
  DEPS sluice_model_compute PkgConfig::JANSSON)
model_run(test_quality_tiny_full test_quality_tiny full 240 full)
model_run(test_quality_qwen test_quality full 600 qwen2.5)
model_run(test_quality_gemma test_quality full 600 gemma3)
# Promise: a prefix that was kept changes no bit.
sluice_test(test_exact_prefix LABEL model TIMEOUT 300 SOURCES test_exact_prefix.c ${LIB}/models.c
  DEPS sluice_test_pipeline sluice_model_compute)
model_run(test_exact_prefix_full test_exact_prefix full 300 full)
model_run(test_exact_prefix_smollm2 test_exact_prefix full 600 smollm2)
model_run(test_exact_prefix_qwen test_exact_prefix nightly 600 qwen2.5)
model_run(test_exact_prefix_gemma test_exact_prefix nightly 600 gemma3)
