// ops_each.h -- run over ops.def. Define the macros you need, include this; the others are empty, and all are undefined after.
// No include guard: it is meant to be included many times.

#ifndef STEP
#define STEP(name, code)
#endif
#ifndef END
#define END(name)
#endif
#ifndef U8
#define U8(field)
#endif
#ifndef S8
#define S8(field)
#endif
#ifndef U16
#define U16(field)
#endif
#ifndef S16
#define S16(field)
#endif
#ifndef U32
#define U32(field)
#endif
#ifndef S32
#define S32(field)
#endif
#ifndef F32
#define F32(field)
#endif
#ifndef NEED
#define NEED(condition)
#endif
#ifndef IN
#define IN(type, field, count)
#endif
#ifndef CONST
#define CONST(type, field, count)
#endif
#ifndef OUT
#define OUT(type, field, count)
#endif
#ifndef UPD
#define UPD(type, field, count)
#endif

#include "../ops.def"

#undef STEP
#undef END
#undef U8
#undef S8
#undef U16
#undef S16
#undef U32
#undef S32
#undef F32
#undef NEED
#undef IN
#undef CONST
#undef OUT
#undef UPD
