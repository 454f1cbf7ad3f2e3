sluice_fuzzer(handshake SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_handshake.c DEPS sluice_worker)
