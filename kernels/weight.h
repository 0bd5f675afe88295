// Weights as the operations take them. The format defines how a stored matrix lies in memory
// (format/weights/weight_form.h); each coding and each storage of scales has its kernels here. To add a coding: a line
// in weight_form.h, a decode in cpu/decode.inl.h and one in cuda/device/decode.cuh; for scales cpu/scales.inl.h and
// cuda/device/scales.cuh.
// Threads: plain values and pure functions. Errors: none.
#pragma once

#include "format/weights/weight_form.h"

namespace dspack::kernels {

using format::code_bytes;
using format::codes_in_16_bytes;
using format::Coding;
using format::coding_of;
using format::CodingFacts;
using format::facts_of;
using format::GlobalScale;
using format::is_packed;
using format::kCodes;
using format::kCodings;
using format::kCodingTable;
using format::kGlobal;
using format::kPackedRun;
using format::kPlanes;
using format::kScales;
using format::kZeros;
using format::plane_size;
using format::PlaneSize;
using format::scale_bytes;
using format::scale_coding_of;
using format::ScaleCoding;
using format::WeightAt;
using format::WeightForm;

}  // namespace dspack::kernels
