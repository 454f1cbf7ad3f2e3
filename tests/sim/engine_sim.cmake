# The whole engine in virtual time: stages in memory, thousands of clients.
if(CMOCKA_FOUND)
  sluice_library(sluice_engine_sim SOURCES engine_sim.c engine_sim_stages.c DEPS sluice_engine sluice_worker PkgConfig::CMOCKA)
  target_compile_definitions(sluice_engine_sim PRIVATE SLUICE_VECTORS="${CMAKE_SOURCE_DIR}/tests/vectors")
endif()
sluice_test(test_engine_sim LABEL component TIMEOUT 120 SOURCES test_engine_sim.c DEPS sluice_engine_sim)
sluice_test(test_engine_sim_share LABEL component TIMEOUT 120 SOURCES test_engine_sim_share.c DEPS sluice_engine_sim)
sluice_test(test_engine_sim_queue LABEL component TIMEOUT 120 SOURCES test_engine_sim_queue.c DEPS sluice_engine_sim)
sluice_test(test_engine_sim_cache LABEL component TIMEOUT 120 SOURCES test_engine_sim_cache.c DEPS sluice_engine_sim)
