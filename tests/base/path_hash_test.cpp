// The path hash against the published vectors of SipHash-2-4 with 128 bits of output: key 00 01 ..
// 0f, input 00 01 .. of each length. Those of 0, 1 and 2 bytes are in the authors' vectors.h; all
// were computed by OpenSSL too.
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "gpufs/file/path_hash.cuh"
#include "gpufs/gpufs.hpp"
#include "gpufs/launch.cuh"
#include "support/device.hpp"

namespace gpufs::testing {

constexpr std::uint64_t sip_key[2] = {0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull};

// Digests as two little-endian words, by length of input.
constexpr std::array<slot_key, 65> sip_vectors{{
    {0xe6a825ba047f81a3ull, 0x930255c71472f66dull}, {0x44af996bd8c187daull, 0x45fc229b11597634ull},
    {0xc75da4a48d227781ull, 0xe4ff0af6de8ba3fcull}, {0x4ea967520cb6709cull, 0x51ed8529b0b6335full},
    {0xaf8f9c2dc16481f8ull, 0x7955cd7b7c6e0f7dull}, {0x886f778059876813ull, 0x27960e69077a5254ull},
    {0x1386208b33caee14ull, 0x5ea1d78f30a05e48ull}, {0x53c1dbd8beebf1a1ull, 0x3982f01fa64ab8c0ull},
    {0x61f55862baa9623bull, 0xb49714f364e2830full}, {0xabbad90a06994426ull, 0xed716dbb028b7fc4ull},
    {0x56691478c30d1100ull, 0xbafbd0f3d34754c9ull}, {0x77666b3868c55101ull, 0x18dce5816fdcb4a2ull},
    {0x58f35e9066b226d6ull, 0x25c13285f64d6382ull}, {0x108bc0e947e26998ull, 0xf752b9c44f9329d0ull},
    {0x9cded766aceffc31ull, 0x024949e45f48c77eull}, {0x11a8b03399e99354ull, 0xd9c3cf970fec087eull},
    {0xbb54b067caa4e26eull, 0x77052385bf1533fdull}, {0x98b88d73e8063d47ull, 0x4077e47ac466c054ull},
    {0x8548bf23e4e526a4ull, 0x23f7aefe81a44d29ull}, {0xb0fa65cf31770178ull, 0xb12e51528920d574ull},
    {0x7390223f83fc259eull, 0xeb3938e8a544933eull}, {0x215a52be5a498e56ull, 0x121d073ecd14228aull},
    {0x9a6bd15245b5294aull, 0xae0aff8e52109c46ull}, {0xe0f5a9d5dd84d1c9ull, 0x1c69bf9a9ae28ccfull},
    {0xd850bd78ae79b42dull, 0xad32618a178a2a88ull}, {0x7b445e2d045fce8eull, 0x6f8f8dcbeab95150ull},
    {0xe807c3b3b4530b9cull, 0x661f147886e0ae7eull}, {0xe4eaa669af48f2abull, 0x94eb9e122febd3bfull},
    {0x884b576816da6406ull, 0xf4ae587302f335b9ull}, {0xe97d33bfc49d4baaull, 0xb76a7c463cfdd40cull},
    {0xde6baf1f477f5ceaull, 0x87226d68d4d71a2bull}, {0xfcfa233218b03929ull, 0x353dc4524fde2317ull},
    {0x3efcea5eca56397cull, 0x68eb4665559d3e36ull}, {0x321cf0467107c677ull, 0xcfffa94e5f9db6b6ull},
    {0xdf7e84b86c98a637ull, 0xde549b30f1f02509ull}, {0xf9a8a99de6f005a7ull, 0xc88c3c922e1a2407ull},
    {0x4648c4291f7dc43dull, 0x11674f90ed769e1eull}, {0x1a0efce601bf620dull, 0x2b69d3c551473c0dull},
    {0x9e667cca8b46038cull, 0xb5e7be4b085efde4ull}, {0x9c2caf3bb95b8a52ull, 0xd92bd2d0e5cc7344ull},
    {0xad5dc9951e306adfull, 0xd83b91c6c80cae97ull}, {0x397f852c90891180ull, 0xdbb6705e289135e7ull},
    {0xbb31c2c96a3417e6ull, 0x5b0ccacc34ae5036ull}, {0xaa21b7ef3734d927ull, 0x89df5aecdc211840ull},
    {0x785e9ced9d7d2389ull, 0x4273cc66b1c9b1d8ull}, {0x657d5ebf91806d4aull, 0x4cb150a294fa8911ull},
    {0x89aee75560f9330eull, 0x022949cf3d0efc3full}, {0xd1190b722b431ce6ull, 0x1b1563dc4bd8c88eull},
    {0xcf82f749f5aee5f7ull, 0x169b2608a6559037ull}, {0x4fa5b7d00f038d43ull, 0x03641a20adf237a8ull},
    {0xe304bf4feed390a5ull, 0x3f4286f2270d7e24ull}, {0xc493fe72a1c1e25full, 0x38f5f9ae7cd35cb1ull},
    {0x6eb306bd5c32972cull, 0x7c013a8bd03d13b2ull}, {0x94ca6b7a2214c892ull, 0x9ed32a009f65f09full},
    {0x8c32d80b1150e8dcull, 0x871d91d64108d5fbull}, {0x1279dac78449f167ull, 0xda832592b52be348ull},
    {0xe94ed572cff23819ull, 0x362a1da96f16947eull}, {0xfe49ed46961e4874ull, 0x8e6904163024620full},
    {0xd8d6a998dea5fc57ull, 0x1d8a3d58d0386400ull}, {0xbe1cdcef1cdeec9full, 0x595357d9743676d4ull},
    {0x53f128eb000c04e3ull, 0x40e772d8cb73ca66ull}, {0xfe1d836a9a009776ull, 0x7a0f6793591ca9ccull},
    {0xa067f52123545358ull, 0xbd5947f0a447d505ull}, {0x4a83502f77d15051ull, 0x7cbd3f979a063e50ull},
    {0x3fcdd4c07d07af1eull, 0x4ba75836384dad8cull},
}};

struct hash_prefixes_kernel {
  const char* bytes;
  slot_key* digests;
  std::uint32_t count;
  std::uint64_t k0, k1;
  GPUFS_HD void operator()(const mount_ref&) const {
    for (std::uint64_t n = thread_group::grid_rank(); n < count; n += thread_group::grid_size()) {
      digests[n] = path_hasher(k0, k1)(bytes, static_cast<std::uint32_t>(n));
    }
  }
};

static std::string counted_bytes(std::size_t n) {
  std::string bytes(n, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  return bytes;
}

TEST(path_hash, gives_the_published_digests) {
  const std::string input = counted_bytes(sip_vectors.size());
  for (std::uint32_t n = 0; n < sip_vectors.size(); ++n) {
    const slot_key digest = path_hasher(sip_key[0], sip_key[1])(input.data(), n);
    EXPECT_EQ(digest.high, sip_vectors[n].high) << n << " bytes";
    EXPECT_EQ(digest.low, sip_vectors[n].low) << n << " bytes";
  }
}

TEST(path_hash, gives_the_same_in_a_kernel) {
  mount m(base_options());
  const std::string input = counted_bytes(sip_vectors.size());
  const device_array<char> bytes(m, std::vector<char>(input.begin(), input.end()));
  const device_array<slot_key> digests(m, sip_vectors.size());
  launch(
      m, {4, 32, 0, nullptr},
      hash_prefixes_kernel{bytes.data(), digests.data(),
                           static_cast<std::uint32_t>(sip_vectors.size()), sip_key[0], sip_key[1]});
  const std::vector<slot_key> got = digests.download();
  for (std::uint32_t n = 0; n < sip_vectors.size(); ++n) {
    EXPECT_TRUE(got[n] == sip_vectors[n]) << n << " bytes";
  }
}

TEST(path_hash, takes_paths_of_the_longest_length_and_any_byte) {
  std::string path(limits::path_bytes_max - 1, '\0');
  for (std::size_t i = 0; i < path.size(); ++i) path[i] = static_cast<char>(i % 251);
  // OpenSSL's digest under the key 00 ff 11 22 33 44 55 66 77 88 99 aa bb cc dd ee.
  const slot_key digest = path_hasher(0x665544332211ff00ull, 0xeeddccbbaa998877ull)(
      path.data(), limits::path_bytes_max - 1);
  EXPECT_EQ(digest.high, 0xe0551ea7780f45a6ull);
  EXPECT_EQ(digest.low, 0x9e0b03489350d214ull);
}

TEST(path_hash, differs_by_key) {
  const slot_key one = path_hasher(1, 2)("/data/a", 7);
  EXPECT_FALSE(one == path_hasher(1, 3)("/data/a", 7));
  EXPECT_FALSE(one == path_hasher(2, 2)("/data/a", 7));
}

}  // namespace gpufs::testing
