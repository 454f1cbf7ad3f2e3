# A model of any architecture whose keys and tensors are changed one by one (common/model/hparams.h, stage/weights.h).
sluice_fuzzer(hparams
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_hparams.c ${CMAKE_SOURCE_DIR}/tests/unit/model/gguf_maker.c
  DEPS sluice_model_compute sluice_text sluice_model)
