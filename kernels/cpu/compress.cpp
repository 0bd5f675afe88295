#include "kernels/cpu/compress.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/products.h"
#include "kernels/cpu/rows.h"

namespace dspack::kernels {
namespace {

class Compressor {
 public:
  explicit Compressor(const CompressArgs& args) : args_(args), width_(args.values.cols) {}

  /// Writes entry `block`.
  void compress(uint32_t block) {
    const uint64_t first = uint64_t{block} * args_.every;
    std::vector<Slot> slots;
    if (args_.overlaps && block > 0) add_slots(first - args_.every, 0, slots);
    add_slots(first, args_.overlaps ? args_.dim : 0, slots);
    std::vector<float> entry(args_.dim);
    // In double precision and rounded once: the entry must not depend on how exp is rounded.
    for (uint32_t channel = 0; channel < args_.dim; ++channel)
      entry[channel] = static_cast<float>(weighted(slots, channel));
    normalise(entry);
    RopeArgs turn;
    turn.rows = 1;
    turn.heads = 1;
    turn.dim = args_.rope_dim;
    turn.first_position = static_cast<uint32_t>(first);
    rotate(turn, entry.data() + (args_.dim - args_.rope_dim), floats(args_.cos_sin));
    store_values(host(args_.entries) + block * bytes_of(args_.dtype, args_.dim), args_.dtype, entry.data(),
                 {.cols = args_.dim, .stride = args_.dim}, {0, 1});
  }

  /// Keeps the last rows for later entries.
  void keep_rows() {
    const uint32_t rows = args_.values.rows;
    for (uint32_t row = rows - std::min(rows, args_.state_rows); row < rows; ++row) {
      const uint64_t position = uint64_t{args_.first_position} + row;
      float* to = floats(args_.state) + position % args_.state_rows * 2 * width_;
      std::memcpy(to, values_of(row), width_ * sizeof(float));
      for (uint64_t i = 0; i < width_; ++i)
        to[width_ + i] = gate_of(row, i);
    }
  }

 private:
  /// u and v of one position, from some channel on: v is `gate`, plus `ape` unless that is null (kept rows include it).
  struct Slot {
    const float* value;
    const float* gate;
    const float* ape;
  };

  [[nodiscard]] const float* values_of(uint32_t row) const {
    return floats(args_.values.data) + uint64_t{row} * args_.values.stride;
  }
  [[nodiscard]] const float* ape_of(uint64_t position) const {
    return floats(args_.ape) + position % args_.every * width_;
  }
  [[nodiscard]] float gate_of(uint32_t row, uint64_t channel) const {
    return floats(args_.gates.data)[uint64_t{row} * args_.gates.stride + channel] +
           ape_of(uint64_t{args_.first_position} + row)[channel];
  }

  /// Appends the positions of one block, from `channel` on.
  void add_slots(uint64_t first, uint32_t channel, std::vector<Slot>& slots) const {
    for (uint64_t position = first; position < first + args_.every; ++position) {
      if (position < args_.first_position) {
        const float* kept = floats(args_.state) + position % args_.state_rows * 2 * width_ + channel;
        slots.push_back({.value = kept, .gate = kept + width_, .ape = nullptr});
        continue;
      }
      const auto row = static_cast<uint32_t>(position - args_.first_position);
      slots.push_back({.value = values_of(row) + channel,
                       .gate = floats(args_.gates.data) + uint64_t{row} * args_.gates.stride + channel,
                       .ape = ape_of(position) + channel});
    }
  }

  static double weighted(const std::vector<Slot>& slots, uint32_t channel) {
    const auto gate = [channel](const Slot& slot) {
      return slot.ape == nullptr ? slot.gate[channel] : slot.gate[channel] + slot.ape[channel];
    };
    float largest = gate(slots.front());
    for (const Slot& slot : slots)
      largest = std::max(largest, gate(slot));
    double sum = 0;
    double total = 0;
    for (const Slot& slot : slots) {
      const double weight = std::exp(static_cast<double>(gate(slot)) - largest);
      sum += weight;
      total += weight * slot.value[channel];
    }
    return total / sum;
  }

  void normalise(std::vector<float>& entry) const {
    double squares = 0;
    for (const float value : entry)
      squares += static_cast<double>(value) * value;
    const double inverse = 1.0 / std::sqrt(squares / args_.dim + args_.epsilon);
    for (uint32_t i = 0; i < args_.dim; ++i)
      entry[i] = static_cast<float>(entry[i] * inverse * floats(args_.gain)[i]);
  }

  const CompressArgs& args_;
  uint64_t width_;
};

}  // namespace

void compress_positions(Workers& workers, const CompressArgs& args) {
  Compressor compressor(args);
  const uint32_t first = args.first_position / args.every;
  const auto end = static_cast<uint32_t>((uint64_t{args.first_position} + args.values.rows) / args.every);
  constexpr uint64_t kExpCost = 16;  // in multiply-adds
  workers.split(end - first, kExpCost * args.every * args.values.cols, [&](uint32_t begin, uint32_t stop) {
    for (uint32_t i = begin; i < stop; ++i)
      compressor.compress(first + i);
  });
  compressor.keep_rows();
}

}  // namespace dspack::kernels
