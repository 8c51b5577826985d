/* pictures.h: the --image options of a command: files to patches, and where their rows go in a
 * prompt. */
#ifndef K3I_CLI_PICTURES_H
#define K3I_CLI_PICTURES_H

#include "args.h"
#include "image.h"
#include "request.h"
#include "tokenizer.h"

/* In the text of a prompt: the place of the next picture. */
#define K3I_PICTURE_MARK "<image>"

typedef struct {
    k3i_patches patches;
    uint64_t key; /* equal for equal bytes */
    size_t at;    /* first row in the prompt, once placed */
} k3i_picture_file;

typedef struct {
    k3i_picture_file *file; /* [n] in the order of the options */
    size_t n;
    size_t n_placed;
} k3i_pictures;

/* The settings of --model's preprocessor_config.json, changed by --image-patches, --exif and
 * --gray16. */
k3_status k3i_picture_settings(const k3i_args *args, k3i_image_settings *ret, k3i_err *err);

/* Reads and prepares one file. Errors name it. */
k3_status k3i_picture_read(const char *path, const k3i_image_settings *s, k3i_patches *ret,
                           uint8_t digest[K3I_IMAGE_KEY_BYTES], k3i_err *err);

/* All files of --image. Free with k3i_pictures_done also after errors (zero-initialise first). */
k3_status k3i_pictures_load(const k3i_args *args, k3i_pictures *ret, k3i_err *err);
void k3i_pictures_done(k3i_pictures *p);

/* Appends the ids of a text whose marks stand for the pictures in order; without a mark all
 * pictures come first. K3_E_OPTION if the numbers differ. The text itself is ordinary text. */
k3_status k3i_pictures_place_text(k3i_pictures *p, const k3i_tok *tok, const char *text, size_t n,
                                  k3i_ids *ret, k3i_err *err);

/* Replaces each media placeholder of the ids by the run of the next picture. K3_E_OPTION if the
 * numbers differ. */
k3_status k3i_pictures_place_ids(k3i_pictures *p, const k3i_tok *tok, k3i_ids *ids, k3i_err *err);

/* Gives the placed pictures to a request, which owns their pixels from then on. */
k3_status k3i_pictures_give(k3i_pictures *p, k3i_request *r, k3i_err *err);

#endif
