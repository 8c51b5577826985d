/* tokenizer.h: text to token ids and back, from tiktoken.model and tokenizer_config.json.
 *
 * A tokenizer is immutable after opening; any number of threads may use it at once. The vocabulary
 * is R byte-level BPE ranks (ids 0..R-1) followed by 256 special ids (R..R+255). R comes from the
 * file: 163,584 for Kimi-K3, less for small models; the names of the special ids stand at the same
 * places after R in all of them and are checked, because the K2 family shares the vocabulary file
 * and gives other names to the same ids. */
#ifndef K3I_TOKENIZER_H
#define K3I_TOKENIZER_H

#include "alloc.h"
#include "buf.h"

#define K3I_TOK_SPECIALS 256  /* reserved ids after the ranks, in every model of the family */
#define K3I_TOK_MAX_BYTES 256 /* longest token */

typedef struct k3i_tok k3i_tok;

/* The special ids, by role. All are present in every tokenizer that opens. */
typedef struct {
    int32_t bos, eos;         /* [BOS] [EOS]: never legitimate output */
    int32_t end_of_msg;       /* ends every message: the model's stop id */
    int32_t open, close, sep; /* structure of the chat format */
    int32_t eot;              /* [EOT]: a guard stop id */
    int32_t media_begin, media_content, media_end, media_pad;
    int32_t unk, pad;
} k3i_tok_ids;

/* Growing list of token ids; `max` limits n. Zero-initialise and set max, or use K3I_IDS. */
typedef struct {
    int32_t *id;
    size_t n, cap, max;
} k3i_ids;

#define K3I_IDS(max_ids) ((k3i_ids){.max = (max_ids)})
/* K3_E_LIMIT beyond max, K3_E_NOMEM; the list is unchanged then. */
k3_status k3i_ids_add(k3i_ids *ids, int32_t id, k3i_err *err);
void k3i_ids_done(k3i_ids *ids);

/* Reads DIR/tiktoken.model and DIR/tokenizer_config.json. Errors name the file, the line or id,
 * what was expected and what was found. Free with k3i_tok_free. */
k3_status k3i_tok_open(const char *dir, k3i_tok **ret, k3i_err *err);
/* The same from memory; nothing is kept of the two blocks. */
k3_status k3i_tok_parse(const void *model, size_t model_bytes, const void *config,
                        size_t config_bytes, k3i_tok **ret, k3i_err *err);
void k3i_tok_free(k3i_tok *tok);

/* Ranks and specials together: valid ids are 0..size-1. */
int32_t k3i_tok_size(const k3i_tok *tok);
const k3i_tok_ids *k3i_tok_special_ids(const k3i_tok *tok);
/* Any of the 256 reserved ids. */
bool k3i_tok_is_special(const k3i_tok *tok, int32_t id);
/* Would skip_special_tokens drop it? (Named ids with the flag set; not open, close, sep.) */
bool k3i_tok_is_skipped(const k3i_tok *tok, int32_t id);
/* The bytes of a token (of its name, for a special id); NULL for an id out of range. */
const uint8_t *k3i_tok_bytes(const k3i_tok *tok, int32_t id, size_t *ret_bytes);

enum {
    K3I_TOK_PLAIN = 0,  /* every character is ordinary text: for all text of users and tools */
    K3I_TOK_SPECIAL = 1 /* special names become their ids (all but <osagent_mode>, see load.c) */
};

/* Appends the ids of text[0..bytes). Ill-formed UTF-8 is read as U+FFFD, one per maximal ill-formed
 * subpart. Time is linear in the length. On failure (K3_E_NOMEM, K3_E_LIMIT) ret may hold a part.
 */
k3_status k3i_tok_encode(const k3i_tok *tok, const char *text, size_t bytes, int mode, k3i_ids *ret,
                         k3i_err *err);

/* The length of the character that p[0..n) begins (n >= 1; it may be longer than n), or 0 if no
 * well-formed UTF-8 character begins so. */
size_t k3i_utf8_length(const uint8_t *p, size_t n);

/* Streaming detokeniser: zero-initialise. It holds back the bytes of an unfinished character. */
typedef struct {
    uint8_t tail[4];
    uint8_t n;
} k3i_detok;

/* Appends the characters that `id` completes; ill-formed bytes become U+FFFD. With skip_specials
 * the ids of k3i_tok_is_skipped add nothing. K3_E_ARG for an id out of range. */
k3_status k3i_detok_push(const k3i_tok *tok, k3i_detok *d, int32_t id, bool skip_specials,
                         k3i_buf *ret, k3i_err *err);
/* Any bytes, not only those of a token. */
k3_status k3i_detok_bytes(k3i_detok *d, const uint8_t *bytes, size_t n, k3i_buf *ret, k3i_err *err);
/* End of the stream: an unfinished character becomes U+FFFD. */
k3_status k3i_detok_flush(k3i_detok *d, k3i_buf *ret, k3i_err *err);
/* All of a list at once: push and flush. */
k3_status k3i_tok_decode(const k3i_tok *tok, const int32_t *ids, size_t n, bool skip_specials,
                         k3i_buf *ret, k3i_err *err);

#endif
