# Warnings and optimisation. Instruction-set flags are set per file in src/kernels, nowhere else,
# so that one binary runs on every x86-64 processor (and ref/ on any processor).
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_C_FLAGS_RELEASE "-O2 -g")
set(CMAKE_C_FLAGS_DEBUG "-O1 -g -DK3_DEBUG=1")

add_compile_options(
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wstrict-prototypes
    -Wmissing-prototypes -Wundef -Wformat=2 -Wcast-align -Werror
    # Contraction into FMA would make a result depend on what the compiler fuses.
    -ffp-contract=off -fno-math-errno)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    # Error texts and paths are cut at their buffer's end on purpose.
    add_compile_options(-Wno-format-truncation)
endif()
add_compile_definitions(_GNU_SOURCE)

if(K3_SANITIZE)
    add_compile_options(-fsanitize=${K3_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${K3_SANITIZE})
endif()
if(K3_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(CCACHE ccache)
if(CCACHE)
    set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
endif()
