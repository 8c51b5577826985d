# k3_module(NAME DEPS a b SOURCES x.c y.c): the static library k3i_NAME of src/NAME. Its headers are
# included by bare file name ("tensor.h"), and only by modules that list it in DEPS.
function(k3_module name)
    cmake_parse_arguments(M "" "" "DEPS;SOURCES" ${ARGN})
    add_library(k3i_${name} STATIC ${M_SOURCES})
    target_include_directories(k3i_${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
    foreach(dep ${M_DEPS})
        if(TARGET k3i_${dep})
            target_link_libraries(k3i_${name} PUBLIC k3i_${dep})
        else()
            target_link_libraries(k3i_${name} PUBLIC ${dep})
        endif()
    endforeach()
endfunction()

# k3_test(NAME LIBS a b SOURCES x.c [LABELS l] [TIMEOUT s]): one cmocka binary = one ctest test.
# K3_TEST_DATA points to tests/data, K3_SOURCE_DIR to the repository, K3_TEST_MODELS to the synthetic checkpoints
# (tests/checkpoint/CMakeLists.txt says how to ask for them).
function(k3_test name)
    cmake_parse_arguments(T "" "TIMEOUT" "LIBS;SOURCES;LABELS" ${ARGN})
    add_executable(test_${name} ${T_SOURCES})
    target_link_libraries(test_${name} PRIVATE ${T_LIBS} cmocka m)
    target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_compile_definitions(test_${name} PRIVATE
        K3_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data" K3_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
        K3_TEST_MODELS="${CMAKE_BINARY_DIR}/models")
    add_test(NAME ${name} COMMAND test_${name})
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 1800) # a whole property test with a sanitizer on a busy machine
    endif()
    set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77)
    if(T_LABELS)
        set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS}")
    endif()
endfunction()

# k3_fuzz(NAME LIBS a b SOURCES fuzz_x.c [CORPUS dir] [DEFS A=b]): a libFuzzer target where K3_FUZZ is on;
# elsewhere the same file linked with a replay main() that runs the corpus once, as a ctest test. 12 s at most,
# because the stage of all targets is one of many in tools/test.sh. No small input may ask for much memory.
function(k3_fuzz name)
    cmake_parse_arguments(F "" "CORPUS" "LIBS;SOURCES;DEFS" ${ARGN})
    if(K3_FUZZ)
        add_executable(fuzz_${name} ${F_SOURCES})
        target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
        target_link_libraries(fuzz_${name} PRIVATE ${F_LIBS} m)
        target_compile_definitions(fuzz_${name} PRIVATE ${F_DEFS})
        if(F_CORPUS)
            add_test(NAME fuzz_${name} COMMAND fuzz_${name} -seed=1 -runs=2000 -max_total_time=12 -malloc_limit_mb=100 -artifact_prefix=${CMAKE_BINARY_DIR}/ ${CMAKE_BINARY_DIR}/corpus_${name} ${F_CORPUS})
            file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/corpus_${name})
        endif()
    else()
        add_executable(replay_${name} ${F_SOURCES} ${CMAKE_SOURCE_DIR}/tests/fuzz/replay_main.c)
        target_link_libraries(replay_${name} PRIVATE ${F_LIBS} m)
        target_compile_definitions(replay_${name} PRIVATE ${F_DEFS})
        add_test(NAME replay_${name} COMMAND replay_${name} ${F_CORPUS})
    endif()
endfunction()
