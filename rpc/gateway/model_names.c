#include "rpc/gateway/model_names.h"

#include <stdio.h>
#include <string.h>

enum status model_names_choose(struct backend *b, struct bytes asked, char *out, size_t size, struct error *err)
{
    struct model_card card;
    char names[200] = "";
    if (!backend_model(b, &card))
        return error_set(err, STATUS_CLOSED, "the coordinator has not told its model yet");
    int i = model_card_find(&card, asked.data, asked.len);
    if (i >= 0) {
        snprintf(out, size, "%s", card.names[i]);
        return STATUS_OK;
    }
    for (uint32_t k = 0; k < card.n_names; k++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", k ? ", " : "", card.names[k]);
    }
    return error_param(err, STATUS_NOT_FOUND, "model", "model_not_found", "model '%.60s' is not served here; %s is",
                       asked.data, names);
}
