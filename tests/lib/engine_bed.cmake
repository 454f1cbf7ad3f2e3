# The engine and stage workers in one process, for tests/unit/engine.
if(CMOCKA_FOUND)
  sluice_library(sluice_engine_bed SOURCES engine_bed.c engine_bed_requests.c tapped_link.c DEPS sluice_engine sluice_worker PkgConfig::CMOCKA)
endif()
