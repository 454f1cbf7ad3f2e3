sluice_fuzzer(config SOURCES ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_config.c DEPS sluice_base)
