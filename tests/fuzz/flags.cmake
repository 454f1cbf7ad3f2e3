# The words of a command line and the environment (common/base/config.h). Files are those of the input, never the system's.
sluice_fuzzer(flags SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_flags.c DEPS sluice_base)
target_link_options(fuzz_flags PRIVATE -Wl,--wrap=fopen,--wrap=open)
