// The parts of the C and C++ libraries that device code uses. Run-time compilers (NVRTC) have no
// library headers, so this file defines these parts for them, with the values of Linux on x86-64,
// which the host uses. All other compilers include the library headers.
#pragma once

#if !defined(__CUDACC_RTC__)

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#else

static_assert(sizeof(long) == 8 && sizeof(void*) == 8, "64-bit Linux");

// A kernel may include other headers that declare the same names. Identical types and macros may be
// declared twice.
namespace std {

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
using intptr_t = long;
using uintptr_t = unsigned long;
using size_t = decltype(sizeof 0);
using ptrdiff_t = long;
using nullptr_t = decltype(nullptr);

using ::memcpy;

}  // namespace std

namespace gpufs::detail {

template <class T, class U>
struct same {
  static constexpr bool value = false;
};
template <class T>
struct same<T, T> {
  static constexpr bool value = true;
};

template <bool condition, class T, class>
struct choice {
  using type = T;
};
template <class T, class U>
struct choice<false, T, U> {
  using type = U;
};

template <class T>
struct without_reference {
  using type = T;
};
template <class T>
struct without_reference<T&> {
  using type = T;
};
template <class T>
struct without_reference<T&&> {
  using type = T;
};

template <class T>
struct without_qualifiers {
  using type = T;
};
template <class T>
struct without_qualifiers<const T> {
  using type = T;
};
template <class T>
struct without_qualifiers<volatile T> {
  using type = T;
};
template <class T>
struct without_qualifiers<const volatile T> {
  using type = T;
};

// The type of an argument passed by value. Functions do not decay here: no code passes them.
template <class T>
struct decayed {
  using type = typename without_qualifiers<T>::type;
};
template <class T>
struct decayed<T[]> {
  using type = T*;
};
template <class T, decltype(sizeof 0) n>
struct decayed<T[n]> {
  using type = T*;
};

template <class T>
struct pointer {
  static constexpr bool value = false;
};
template <class T>
struct pointer<T*> {
  static constexpr bool value = true;
};

template <class T, class... Others>
inline constexpr bool one_of = (same<T, Others>::value || ...);

}  // namespace gpufs::detail

namespace std {

template <class T, class U>
inline constexpr bool is_same_v = gpufs::detail::same<T, U>::value;
template <bool condition, class T, class U>
using conditional_t = typename gpufs::detail::choice<condition, T, U>::type;
template <class T>
using remove_cv_t = typename gpufs::detail::without_qualifiers<T>::type;
template <class T>
using decay_t =
    typename gpufs::detail::decayed<typename gpufs::detail::without_reference<T>::type>::type;
template <class T>
inline constexpr bool is_enum_v = __is_enum(T);
template <class T>
using underlying_type_t = __underlying_type(T);
template <class T>
inline constexpr bool is_integral_v =
    gpufs::detail::one_of<remove_cv_t<T>, bool, char, signed char, unsigned char, wchar_t, char8_t,
                          char16_t, char32_t, short, unsigned short, int, unsigned int, long,
                          unsigned long, long long, unsigned long long>;
template <class T>
inline constexpr bool is_floating_point_v = gpufs::detail::one_of<remove_cv_t<T>, float, double>;
template <class T, bool = is_integral_v<T> || is_floating_point_v<T>>
inline constexpr bool is_signed_v = false;
template <class T>
inline constexpr bool is_signed_v<T, true> = remove_cv_t<T>(-1) < remove_cv_t<T>(0);
template <class T>
inline constexpr bool is_pointer_v = gpufs::detail::pointer<remove_cv_t<T>>::value;
template <class T>
inline constexpr bool is_null_pointer_v = is_same_v<remove_cv_t<T>, nullptr_t>;

}  // namespace std

// <errno.h>
#define ENOENT 2
#define EIO 5
#define EBADF 9
#define EAGAIN 11
#define ENOMEM 12
#define EACCES 13
#define EFAULT 14
#define EBUSY 16
#define EEXIST 17
#define EXDEV 18
#define ENOTDIR 20
#define EISDIR 21
#define EINVAL 22
#define EMFILE 24
#define EFBIG 27
#define ENOSPC 28
#define EROFS 30
#define ERANGE 34
#define ENAMETOOLONG 36
#define ELOOP 40
#define EOVERFLOW 75
#define EOPNOTSUPP 95
#define ENOTSUP EOPNOTSUPP
#define ENOBUFS 105
#define ESTALE 116
#define EDQUOT 122

// <fcntl.h>
#define O_ACCMODE 0003
#define O_RDONLY 00
#define O_WRONLY 01
#define O_RDWR 02
#define O_CREAT 0100
#define O_EXCL 0200
#define O_TRUNC 01000
#define O_APPEND 02000
#define O_NOFOLLOW 0400000
#define O_CLOEXEC 02000000
#define POSIX_FADV_NORMAL 0
#define POSIX_FADV_RANDOM 1
#define POSIX_FADV_SEQUENTIAL 2
#define POSIX_FADV_WILLNEED 3
#define POSIX_FADV_DONTNEED 4
#define POSIX_FADV_NOREUSE 5

// <unistd.h>
#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2

#endif
