# What /proc and the cgroups say of memory (stage/memory.h). Files are those of the input.
sluice_fuzzer(host_memory SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_host_memory.c DEPS sluice_kv)
target_link_options(fuzz_host_memory PRIVATE -Wl,--wrap=fopen,--wrap=fopen64)
