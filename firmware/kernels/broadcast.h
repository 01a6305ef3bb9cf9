// broadcast.h -- two operands of an elementwise step: a (P,C) and a second one, b, that may be spread to P rows, C columns or both.

#ifndef MG_BROADCAST_H
#define MG_BROADCAST_H

#include "error.h"

// b is read as b[p * row + c * column]. P, C >= 1 and P*C <= 2^30: plan_check.
struct mg_spread {
    uint32_t row, column;
};

#define MG_SPREAD(k) {(k)->bp == 0 ? 0 : (k)->bc == 0 ? 1 : (k)->c, (k)->bc}

// The elements of a that read one element of b: `rows` rows of `columns` elements, C apart.
struct mg_readers {
    uint32_t rows, columns;
};

#define MG_READERS(k) {(k)->bp == 0 ? (k)->p : 1, (k)->bc == 0 ? (k)->c : 1}

#endif
