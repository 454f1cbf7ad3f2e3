# The model side of a stage (stage/model_compute.cmake).
set(CHAIN ${CMAKE_SOURCE_DIR}/tests/lib/chain.c)
set(PLAIN ${CMAKE_SOURCE_DIR}/tests/lib/plain_model.c)
set(TINY ${CMAKE_SOURCE_DIR}/tests/lib/tiny.c)
sluice_test(test_sampler LABEL unit SOURCES test_sampler.c DEPS sluice_model_compute)
sluice_test(test_forward_tiny LABEL component TIMEOUT 120 SOURCES test_forward_tiny.c ${CHAIN} ${TINY} ${PLAIN}
  DEPS sluice_model_compute PkgConfig::JANSSON)
sluice_test(test_forward_experts LABEL unit SOURCES test_forward_experts.c ${CHAIN} DEPS sluice_model_compute)
sluice_test(test_weights LABEL unit SOURCES test_weights.c DEPS sluice_model_compute gguf_maker)
sluice_test(test_model_compute LABEL unit SOURCES test_model_compute.c ${CHAIN} DEPS sluice_model_compute)
