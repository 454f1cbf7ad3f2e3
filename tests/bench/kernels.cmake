sluice_program(bench_kernels SOURCES bench_kernels.c DEPS sluice_op_table)
