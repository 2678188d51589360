/* SPDX-License-Identifier: Apache-2.0 */
/* Between libFuzzer and a target. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_one((struct str){data ? (const char *)data : "", size});
    return 0;
}
