sluice_fuzzer(grpc_messages SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_grpc_messages.c DEPS sluice_rpc)
