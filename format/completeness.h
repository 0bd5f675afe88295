// Finds what a checkpoint seems to have lost. Experts and layers of one model are alike, so one that lacks a tensor
// which all others have is most likely damaged (a shard that was not saved, an incomplete download).
// Threads: thread-safe (pure functions). Errors: none; the findings are messages for people and decide nothing.
#pragma once

#include <string>
#include <vector>

#include "format/checkpoint.h"

namespace dspack::format {

/// One sentence per kind of loss, naming the first: an expert lacks a tensor that its layer's other experts have; a
/// layer has fewer experts than the largest expert number implies; the layer numbers have a gap; a layer with experts
/// lacks a tensor that all other such layers have. Empty: nothing seems lost.
[[nodiscard]] std::vector<std::string> missing_parts(const Checkpoint& checkpoint);

}  // namespace dspack::format
