/* drive_pictures.h: prompts with pictures, driven through k3.h as a simple host would. */
#ifndef DRIVE_PICTURES_H
#define DRIVE_PICTURES_H

#include "test.h"

#include "image.h"

enum { MAX_PICTURES = 4 };

typedef struct {
    int32_t *ids;
    size_t n, n_pictures;
    struct {
        const char *file;
        int32_t first, tokens; /* rows of the prompt */
    } picture[MAX_PICTURES];
} picture_prompt;

/* An engine with one slot and memory for a few thousand tokens. Fails the test on error. */
k3_engine *pictures_open(const char *model_dir, const char *mode, int threads);

/* A file of folder `dir`, prepared with the settings of the model. */
k3i_patches pictures_load(const char *model_dir, const char *dir, const char *file);
k3_image pictures_image(uint64_t key, const k3i_patches *p);

/* Encodes the pictures of a prompt under keys base, base + 1, ... in one call. */
void pictures_encode(k3_engine *e, const char *model_dir, const char *dir, const picture_prompt *p,
                     uint64_t base);

/* Rows [from, to) of the prompt in one step; logits of the last. Pictures that the step cuts give
 * it the rows that fall inside. */
void pictures_feed(k3_engine *e, const picture_prompt *p, uint64_t base, int32_t from, int32_t to,
                   float *logits);

/* The prompt in steps of `chunk` rows (0: whole). */
void pictures_prefill(k3_engine *e, const picture_prompt *p, uint64_t base, int32_t chunk,
                      float *logits);

/* Compares one prefill with many chunkings, and with every split inside a picture: all bitwise
 * equal. */
void pictures_check_chunks(k3_engine *e, const picture_prompt *p, uint64_t base);

#endif
