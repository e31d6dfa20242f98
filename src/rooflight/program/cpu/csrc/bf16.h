// A number of 16 bits, as it is stored: the upper half of a float.
#pragma once

#include <cstdint>
#include <cstring>

namespace rooflight {

struct Bf16 {
  uint16_t bits;

  Bf16() = default;

  // The nearest, the even one of two.
  explicit Bf16(float value) {
    uint32_t whole;
    std::memcpy(&whole, &value, sizeof whole);
    const bool is_number = value == value;
    bits = (is_number ? whole + 0x7fff + (whole >> 16 & 1) : whole | 0x400000) >> 16;
  }

  operator float() const {
    const uint32_t whole = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &whole, sizeof value);
    return value;
  }
};

}  // namespace rooflight
