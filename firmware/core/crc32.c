// crc32.c -- zlib's CRC-32, four bits at a time: a table of 64 bytes.

#include "mcugrad.h"

static const uint32_t nibbles[16] = {
    0x00000000u, 0x1DB71064u, 0x3B6E20C8u, 0x26D930ACu, 0x76DC4190u, 0x6B6B51F4u, 0x4DB26158u, 0x5005713Cu,
    0xEDB88320u, 0xF00F9344u, 0xD6D6A3E8u, 0xCB61B38Cu, 0x9B64C2B0u, 0x86D3D2D4u, 0xA00AE278u, 0xBDBDF21Cu,
};

uint32_t mg_crc32(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    crc = ~crc;
    for (size_t k = 0; k < bytes; k++) {
        crc ^= at[k];
        crc = crc >> 4 ^ nibbles[crc & 15];
        crc = crc >> 4 ^ nibbles[crc & 15];
    }
    return ~crc;
}
