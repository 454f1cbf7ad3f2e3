sluice_fuzzer(gguf SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_gguf.c DEPS sluice_model)
