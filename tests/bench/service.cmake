sluice_program(service_load SOURCES service_load.c DEPS sluice_base)
