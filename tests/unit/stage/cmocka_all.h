/* tests/unit/stage/cmocka_all.h - cmocka with what it must have in front of it. Purpose, Ownership, Threading, Errors: cmocka's. */
#ifndef SLUICE_TESTS_UNIT_STAGE_CMOCKA_ALL_H
#define SLUICE_TESTS_UNIT_STAGE_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
