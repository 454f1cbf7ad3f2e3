sluice_fuzzer(frame SOURCES ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_frame.c DEPS sluice_worker)
