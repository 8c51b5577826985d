/* draft_file.h: the tiny draft of dspark.md 10.1 as files, for the target test_model_pair. */
#ifndef K3_DSPARK_DRAFT_FILE_H
#define K3_DSPARK_DRAFT_FILE_H

#include "model.h"

/* Hidden 64, 8 layers, MLA at 3 and 7, AttnRes blocks at 0, 3, 6, vocabulary 97. */
extern const test_model test_model_pair;

/* Writes config.json and model.safetensors of the draft into `dir`, which exists. Taps 0, 2, 4, 7:
 * a block start, the last layer of a block before a block start, mid-block, and the end of the
 * loop. */
void draft_file_write(const char *dir);

/* A folder with the target and one with its draft; and their end, which passes `failed` on. */
void draft_pair_new(char **target_dir, char **draft_dir);
int draft_pair_done(int failed, char *target_dir, char *draft_dir);

#endif
