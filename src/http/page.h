/* page.h: the chat page of GET /, embedded from page.html when k3 is built. */
#ifndef K3I_PAGE_H
#define K3I_PAGE_H

#include <stddef.h>

extern const unsigned char k3i_page[];
extern const size_t k3i_page_bytes;

#endif
