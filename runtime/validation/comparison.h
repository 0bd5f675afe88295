// Differences between a pass and a recording of it: sums of errors per tensor, the verdict, and both as text for people
// and as JSON for programs.
// Threads: plain values. Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/dtype.h"
#include "format/json.h"

namespace dspack::runtime {

/// Errors of values against their reference, summed in double precision.
struct ErrorSums {
  uint64_t values = 0;
  double error = 0;              // sum |a - b|
  double reference = 0;          // sum |b|
  double error_squares = 0;      // sum (a - b)^2
  double reference_squares = 0;  // sum b^2
  double largest = 0;            // max |a - b|
  uint64_t not_a_number = 0;     // pairs with a NaN on one side only, or an infinity that the other does not share
  bool other_rows = false;       // the reference has another number of rows; nothing was summed

  /// Precondition: equal lengths.
  void add(std::span<const double> got, std::span<const double> wanted);
  /// sum |a - b| / sum |b|; infinity if the two cannot be compared.
  [[nodiscard]] double relative() const;
  /// sum (a - b)^2 / sum b^2
  [[nodiscard]] double nmse() const;
};

/// One line of the table: a module's input and output against the recording's.
struct ComparedModule {
  std::string module;  // "<module> (routing)" for a router's choice
  uint64_t rows = 0;
  std::optional<ErrorSums> input;
  std::optional<ErrorSums> output;
  double input_tolerance = 0;
  double output_tolerance = 0;
  uint64_t tokens_routed_otherwise = 0;  // tokens for which a router chose other experts

  [[nodiscard]] bool input_departs() const { return input && !(input->relative() <= input_tolerance); }
  [[nodiscard]] bool output_departs() const { return output && !(output->relative() <= output_tolerance); }
};

/// Agreement of two programs' logits for the same tokens. Q is this program, P the reference.
struct LogitAgreement {
  uint64_t rows = 0;
  double divergence = 0;          // sum of KL(P || Q), nats
  double largest_divergence = 0;  // largest KL(P || Q) of a row
  uint64_t same_top = 0;          // rows with the same most likely token

  /// One row from each program: FP values before the softmax.
  void add(std::span<const double> logits, std::span<const double> wanted);
};

struct NotCompared {
  std::string name;
  std::string reason;
  bool departs = false;  // missing because the two programs differ
};

struct Comparison {
  std::vector<ComparedModule> modules;  // in the order in which this program finished them
  std::optional<LogitAgreement> logits;
  std::vector<NotCompared> only_in_reference;  // tensors that were not compared
  std::vector<NotCompared> only_here;          // modules that were not compared

  /// The first module whose output departs, else the first whose input does. nullptr: none.
  [[nodiscard]] const ComparedModule* first_departure() const;
  [[nodiscard]] bool within_tolerance() const;
};

/// The bound that two correct FP32 programs stay below; for references in a 16-bit type, the error of computing in that
/// type.
[[nodiscard]] double default_tolerance(Dtype dtype);

/// A table with a line for each module, then the verdict; control characters in names are made visible.
[[nodiscard]] std::string report_text(const Comparison& comparison);

/// The whole comparison. Infinite values are null.
[[nodiscard]] format::Json report_json(const Comparison& comparison);

}  // namespace dspack::runtime
