sluice_fuzzer(request_head SOURCES fuzz_request_head.c DEPS sluice_gateway)
target_link_options(fuzz_request_head PRIVATE -Wl,--wrap=MHD_lookup_connection_value,--wrap=MHD_get_connection_info)
