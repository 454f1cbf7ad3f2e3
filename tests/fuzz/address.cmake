# HOST:PORT (common/base/address.h).
sluice_fuzzer(address SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_address.c DEPS sluice_base)
