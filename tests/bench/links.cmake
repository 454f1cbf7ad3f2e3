sluice_program(bench_links SOURCES bench_links.c DEPS sluice_worker)
