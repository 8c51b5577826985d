/* exif.c: finds the orientation tag in the first directory of an EXIF block. Every offset is
 * foreign and is checked against the end of the block. */
#include "decode.h"

#include <string.h>

#define TAG_ORIENTATION 0x0112
#define TYPE_SHORT 3
#define TYPE_LONG 4

typedef struct {
    const uint8_t *p;
    size_t n;
    bool is_big; /* "MM": most significant byte first */
} tiff;

/* False if the value would end behind the block. */
static bool get(const tiff *t, size_t at, size_t bytes, uint32_t *ret)
{
    if (at > t->n || bytes > t->n - at)
        return false;
    uint32_t v = 0;
    for (size_t i = 0; i < bytes; i++)
        v = v << 8 | t->p[at + (t->is_big ? i : bytes - 1 - i)];
    *ret = v;
    return true;
}

int k3i_exif_orientation(const uint8_t *exif, size_t n)
{
    if (n >= 6 && memcmp(exif, "Exif\0\0", 6) == 0) {
        exif += 6;
        n -= 6;
    }
    if (n < 8 || (memcmp(exif, "II*\0", 4) != 0 && memcmp(exif, "MM\0*", 4) != 0))
        return 1;
    tiff t = {exif, n, exif[0] == 'M'};
    uint32_t dir, count;
    if (!get(&t, 4, 4, &dir) || !get(&t, dir, 2, &count))
        return 1;
    for (uint32_t i = 0; i < count; i++) {
        size_t at = (size_t)dir + 2 + (size_t)i * 12;
        uint32_t tag, type, value;
        if (!get(&t, at, 2, &tag) || !get(&t, at + 2, 2, &type))
            return 1;
        if (tag != TAG_ORIENTATION || (type != TYPE_SHORT && type != TYPE_LONG))
            continue;
        if (!get(&t, at + 8, type == TYPE_SHORT ? 2 : 4, &value))
            return 1;
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}
