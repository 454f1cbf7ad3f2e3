sluice_fuzzer(pretokenizer SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_pretokenizer.c DEPS sluice_text sluice_model sluice_base)
