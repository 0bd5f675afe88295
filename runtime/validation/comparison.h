// How far a pass is from a recording of one: sums of errors, tensor by tensor, and the verdict.
// Threads: plain values. Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/dtype.h"

namespace dspack::runtime {

/// Errors of some values against their reference, summed up in double precision.
struct ErrorSums {
  uint64_t values = 0;
  double error = 0;              // sum |a - b|
  double reference = 0;          // sum |b|
  double error_squares = 0;      // sum (a - b)^2
  double reference_squares = 0;  // sum b^2
  double largest = 0;            // max |a - b|
  uint64_t not_a_number = 0;     // NaN, or another infinity, in one of the two alone
  bool other_rows = false;       // another number of rows than the reference has: nothing was summed up

  /// Precondition: equal lengths.
  void add(std::span<const double> got, std::span<const double> wanted);
  /// sum |a - b| / sum |b|; infinite where the two cannot be compared.
  [[nodiscard]] double relative() const;
  /// sum (a - b)^2 / sum b^2
  [[nodiscard]] double nmse() const;
};

/// One line of the table: what a module read and made, beside what the reference has of it.
struct ComparedModule {
  std::string module;  // of a router's choice: "<module> (routing)"
  uint64_t rows = 0;
  std::optional<ErrorSums> input;
  std::optional<ErrorSums> output;
  double input_tolerance = 0;
  double output_tolerance = 0;
  uint64_t tokens_routed_otherwise = 0;  // of a router's choice

  [[nodiscard]] bool input_departs() const { return input && !(input->relative() <= input_tolerance); }
  [[nodiscard]] bool output_departs() const { return output && !(output->relative() <= output_tolerance); }
};

/// Logits of the same tokens from two programs. Q is this program, P the reference.
struct LogitAgreement {
  uint64_t rows = 0;
  double divergence = 0;          // sum of KL(P || Q), nats
  double largest_divergence = 0;  // of one row
  uint64_t same_top = 0;          // rows whose likeliest token is the same

  /// One row each, FP values before the softmax.
  void add(std::span<const double> logits, std::span<const double> wanted);
};

struct NotCompared {
  std::string name;
  std::string reason;
  bool departs = false;  // it is missing because the two programs differ
};

struct Comparison {
  std::vector<ComparedModule> modules;  // in the order in which this program finished them
  std::optional<LogitAgreement> logits;
  std::vector<NotCompared> only_in_reference;  // tensors
  std::vector<NotCompared> only_here;          // modules

  /// The first module whose output departs, else the first whose input does. nullptr: none.
  [[nodiscard]] const ComparedModule* first_departure() const;
  [[nodiscard]] bool within_tolerance() const;
};

/// What two sound FP32 programs stay below, and for references in a small type what computing in that type costs.
[[nodiscard]] double default_tolerance(Dtype dtype);

}  // namespace dspack::runtime
