sluice_fuzzer(tokenizer
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_tokenizer.c ${CMAKE_SOURCE_DIR}/tests/unit/text/vocabulary_maker.c
  DEPS sluice_text sluice_model sluice_base)
