# What the coordinator's unary calls, health, status and reflection make of a message. The calls and their loop are the target's.
sluice_fuzzer(rpc_calls SOURCES ${CMAKE_CURRENT_LIST_DIR}/fuzz_rpc_calls.c DEPS sluice_rpc)
target_link_options(fuzz_rpc_calls PRIVATE
  -Wl,--wrap=rpc_server__add_service,--wrap=rpc_server__add_method,--wrap=rpc_server__services,--wrap=rpc_server__set_health
  -Wl,--wrap=rpc_call_read,--wrap=rpc_call_kick,--wrap=rpc_call_finish,--wrap=rpc_call_retain,--wrap=rpc_call_release
  -Wl,--wrap=rpc_call_fini,--wrap=rpc_call_closed,--wrap=rpc_loop__scratch,--wrap=rpc_timer_start,--wrap=rpc_timer_cancel)
