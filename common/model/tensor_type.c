#include "common/model/tensor_type.h"

#include <stddef.h>

const struct tensor_type_info *tensor_type_info(uint32_t id)
{
    static const struct tensor_type_info table[] = {
#define X(name, id, elements, bytes) [id] = {#name, elements, bytes},
        TENSOR_TYPE_MAP(X)
#undef X
    };
    if (id >= sizeof table / sizeof *table || !table[id].name)
        return NULL;
    return &table[id];
}
