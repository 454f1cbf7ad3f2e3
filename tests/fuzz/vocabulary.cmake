sluice_fuzzer(vocabulary SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_vocabulary.c DEPS sluice_text sluice_model sluice_base)
