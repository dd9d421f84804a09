# Writes OUTPUT, a C file with the FILES (separated by commas) in it as pm_page_files: cmake -DOUTPUT= -DFILES= -P embed.cmake

set(types
    html text/html
    css text/css
    js text/javascript
    svg image/svg+xml)

string(REPLACE "," ";" FILES "${FILES}")
set(arrays)
set(rows)
set(number 0)
foreach(file ${FILES})
    get_filename_component(name ${file} NAME)
    get_filename_component(suffix ${file} LAST_EXT)
    string(SUBSTRING ${suffix} 1 -1 suffix)
    list(FIND types ${suffix} at)
    if(at LESS 0)
        message(FATAL_ERROR "${file}: the page has no files of this type")
    endif()
    math(EXPR at "${at} + 1")
    list(GET types ${at} type)
    file(READ ${file} bytes HEX)
    file(SHA256 ${file} hash)
    string(SUBSTRING ${hash} 0 16 hash)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
    string(APPEND arrays "static const unsigned char file_${number}[] = {${bytes}};\n")
    string(APPEND rows "    {\"/${name}\", \"${type}; charset=utf-8\", \"\\\"${hash}\\\"\", file_${number}, sizeof(file_${number})},\n")
    math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "#include \"server/page.h\"\n\n${arrays}\nconst pm_page_file pm_page_files[] = {\n${rows}};\n"
    "const size_t pm_page_count = ${number};\n")
