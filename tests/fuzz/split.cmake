sluice_fuzzer(split
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_split.c ${CMAKE_SOURCE_DIR}/tests/unit/model/gguf_maker.c
  DEPS sluice_model)
