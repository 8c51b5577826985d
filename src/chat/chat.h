/* chat.h: the K3 chat format (XTML): an OpenAI chat request becomes a prompt of token ids.
 *
 * The prompt is a list of segments. Markers and picture blocks are control segments that only the
 * renderer makes; everything else is text, tokenised apart and in plain mode. So nothing that a
 * user, a tool or a schema says can become a control token, and no token spans a border.
 *
 * Requests are read with yyjson and the flags K3I_CHAT_READ_FLAGS; the document must outlive the
 * k3i_chat_req made from it. */
#ifndef K3I_CHAT_H
#define K3I_CHAT_H

#include "tokenizer.h"

#include <yyjson.h>

/* Integers beyond 64 bits keep their digits. */
#define K3I_CHAT_READ_FLAGS YYJSON_READ_BIGNUM_AS_RAW

enum { K3I_EFFORT_NONE, K3I_EFFORT_LOW, K3I_EFFORT_HIGH, K3I_EFFORT_MAX };
enum { K3I_TOOLS_AUTO, K3I_TOOLS_NONE, K3I_TOOLS_REQUIRED, K3I_TOOLS_NAMED };
enum { K3I_FORMAT_TEXT, K3I_FORMAT_OBJECT, K3I_FORMAT_SCHEMA };
enum { K3I_CHANNEL_NONE, K3I_CHANNEL_THINK, K3I_CHANNEL_RESPONSE };

/* What a request says about its prompt and its output. Points into the JSON document. */
typedef struct {
    yyjson_val *messages;        /* array */
    yyjson_val *tools;           /* non-empty array, or NULL */
    yyjson_val *response_format; /* object, or NULL */
    int32_t format;              /* K3I_FORMAT_ of response_format */
    int32_t tool_choice;         /* K3I_TOOLS_; AUTO as well when there are no tools at all */
    const char *tool_name;       /* K3I_TOOLS_NAMED: the function's name */
    int32_t effort;              /* K3I_EFFORT_; NONE: no effort message */
    bool is_thinking;
    bool has_tools; /* global or dynamic ones */
    bool parallel_tool_calls;
    bool add_generation_prompt;
    bool is_partial; /* the last message is an assistant's, left open and continued */
} k3i_chat_req;

/* The defaults of an empty request: thinking on, effort max, a generation prompt. */
k3i_chat_req k3i_chat_req_default(yyjson_val *messages);

/* Reads and checks the chat fields of a request object: messages, tools, tool_choice,
 * parallel_tool_calls, response_format, thinking, chat_template_kwargs, reasoning_effort,
 * add_generation_prompt, continue_final_message. K3_E_FORMAT names the field (an HTTP 400). */
k3_status k3i_chat_parse(yyjson_val *root, k3i_chat_req *ret, k3i_err *err);
/* The same; *ret_field is the top-level field at fault (static), NULL without one. */
k3_status k3i_chat_parse_named(yyjson_val *root, k3i_chat_req *ret, const char **ret_field,
                               k3i_err *err);

/* One picture of the request, in order of appearance. `url` is not NUL-terminated beyond its
 * length. */
typedef struct {
    const char *url;
    size_t url_bytes;
    uint32_t width, height; /* original size in pixels: set by the caller, then render */
    uint32_t n_pad;         /* <|media_pad|> tokens: set by the caller */
} k3i_chat_image;

/* Lists the pictures of all messages. *ret (k3i_free) is NULL when there are none. */
k3_status k3i_chat_images(const k3i_chat_req *req, k3i_chat_image **ret, size_t *ret_n,
                          k3i_err *err);

enum {
    K3I_SEG_TEXT, /* text, tokenised plainly */
    K3I_SEG_OPEN,
    K3I_SEG_CLOSE,
    K3I_SEG_SEP,
    K3I_SEG_END_OF_MSG,
    K3I_SEG_IMAGE /* the whole block of picture `image` */
};

typedef struct {
    int32_t kind;
    uint32_t image;
    size_t at, n; /* K3I_SEG_TEXT: bytes [at, at + n) of k3i_chat_segs.text */
} k3i_chat_seg;

typedef struct {
    k3i_buf text;
    k3i_chat_seg *seg;
    size_t n_seg, cap_seg;
    int32_t channel;    /* K3I_CHANNEL_ that the prompt leaves open */
    uint32_t n_pending; /* tokens of the channel opener of a generation prompt (3), else 0 */
} k3i_chat_segs;

/* Renders to segments. `images` are those of k3i_chat_images; max_bytes bounds the text.
 * K3_E_FORMAT for a message that cannot be rendered. Free with k3i_chat_segs_done. */
k3_status k3i_chat_segments(const k3i_chat_req *req, size_t n_image, size_t max_bytes,
                            k3i_chat_segs *ret, k3i_err *err);
void k3i_chat_segs_done(k3i_chat_segs *segs);

/* Where a picture's features go: ids[at .. at + n) are <|media_pad|>. */
typedef struct {
    size_t at, n;
    uint32_t image; /* index into the list of k3i_chat_images */
} k3i_chat_slot;

typedef struct {
    k3i_ids ids;
    k3i_chat_slot *slot; /* [n_slot], ascending */
    size_t n_slot;
    int32_t channel;    /* K3I_CHANNEL_ that the answer begins in */
    uint32_t n_pending; /* Kimi's API bills ids.n - n_pending prompt tokens */
} k3i_chat_prompt;

/* Renders to token ids, at most max_tokens. Free with k3i_chat_prompt_done. */
k3_status k3i_chat_render(const k3i_tok *tok, const k3i_chat_req *req, const k3i_chat_image *images,
                          size_t n_image, size_t max_tokens, k3i_chat_prompt *ret, k3i_err *err);
void k3i_chat_prompt_done(k3i_chat_prompt *prompt);

#endif
