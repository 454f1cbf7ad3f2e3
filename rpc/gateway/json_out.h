/* rpc/gateway/json_out.h - JSON text appended to a buf.
 *
 * Purpose    What the gateway writes is small and fixed in shape, so it is written directly; only strings need care.
 * Threading  Pure.
 * Errors     Those of buf, sticky.
 */
#ifndef SLUICE_RPC_GATEWAY_JSON_OUT_H
#define SLUICE_RPC_GATEWAY_JSON_OUT_H

#include <stdint.h>

#include "common/base/buf.h"

/* The inside of a string, without quotes. Bytes that are not UTF-8 become U+FFFD, so that the result is always valid. */
enum status json_out_escaped(struct buf *b, const char *text, size_t len);
/* The inside of a string: bytes that are no character as \xHH, which a reader sees (`\\xHH` in JSON). */
enum status json_out_token(struct buf *b, const char *text, size_t len);
int json_out_is_text(const char *text, size_t len); /* all of it is UTF-8 */
enum status json_out_string(struct buf *b, const char *text, size_t len); /* with quotes */
enum status json_out_text(struct buf *b, const char *text);               /* 0-terminated, with quotes */
enum status json_out_text_or_null(struct buf *b, const char *text);       /* "" gives null */
enum status json_out_ids(struct buf *b, const uint32_t *ids, size_t n);   /* [1,2,3] */
enum status json_out_real(struct buf *b, double v);                       /* three decimals; not finite: 0 */

#endif
