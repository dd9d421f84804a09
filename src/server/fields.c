#include "fields.h"

#include <stdio.h>
#include <string.h>

/* What each kind takes, for messages. */
static const char *const takes[] = {
    [PM_FIELD_BOOL] = "true or false", [PM_FIELD_WHOLE] = "a whole number", [PM_FIELD_INT] = "a whole number",
    [PM_FIELD_FLOAT] = "a number",     [PM_FIELD_TEXT] = "a text",          [PM_FIELD_LIST] = "a list",
    [PM_FIELD_OBJECT] = "an object",
};

static bool wrong_kind(const pm_field *field, const char *name, pm_refusal *refusal)
{
    return pm_refuse(refusal, 400, "invalid_type", name, "'%s' must be %s", name, takes[field->kind]);
}

static bool in_range(const pm_field *field, const char *name, double x, pm_refusal *refusal)
{
    if (x >= field->min && x <= field->max)
        return true;
    return pm_refuse(refusal, 400, "invalid_value", name, "'%s' must be from %.15g to %.15g", name, field->min,
                     field->max);
}

/* Refuses a value that is not the one that means nothing. */
static bool only(const pm_field *field, const char *name, json_t *value, pm_refusal *refusal)
{
    json_t *allowed = field->only ? json_loads(field->only, JSON_DECODE_ANY, NULL) : NULL;
    bool same = allowed && json_equal(value, allowed);
    json_decref(allowed);
    if (same)
        return true;
    return field->only
               ? pm_refuse(refusal, 400, "unsupported_value", name, "'%s' is supported only as %s", name, field->only)
               : pm_refuse(refusal, 400, "unsupported_parameter", name, "'%s' is not supported", name);
}

static bool read_number(const pm_field *field, const char *name, char *place, json_t *value, pm_refusal *refusal)
{
    bool whole = field->kind != PM_FIELD_FLOAT;
    if (whole ? !json_is_integer(value) : !json_is_number(value))
        return wrong_kind(field, name, refusal);
    if (!in_range(field, name, json_number_value(value), refusal))
        return false;
    if (field->kind == PM_FIELD_WHOLE)
        *(int64_t *)place = json_integer_value(value);
    else if (field->kind == PM_FIELD_INT)
        *(int *)place = (int)json_integer_value(value);
    else
        *(float *)place = (float)json_number_value(value);
    return true;
}

/* Reads a field whose full name is `name`. */
static bool read_field(const pm_field *field, const char *name, void *target, json_t *value, pm_refusal *refusal)
{
    char *place = (char *)target + field->offset;
    switch (field->kind) {
    case PM_FIELD_BOOL:
        if (!json_is_boolean(value))
            return wrong_kind(field, name, refusal);
        *(bool *)place = json_is_true(value);
        return true;
    case PM_FIELD_WHOLE:
    case PM_FIELD_INT:
    case PM_FIELD_FLOAT: return read_number(field, name, place, value, refusal);
    case PM_FIELD_TEXT:
        if (!json_is_string(value))
            return wrong_kind(field, name, refusal);
        *(const char **)place = json_string_value(value);
        return true;
    case PM_FIELD_LIST:
    case PM_FIELD_OBJECT:
        if (field->kind == PM_FIELD_LIST ? !json_is_array(value) : !json_is_object(value))
            return wrong_kind(field, name, refusal);
        *(json_t **)place = value;
        return true;
    case PM_FIELD_ANY: *(json_t **)place = value; return true;
    case PM_FIELD_READ: return field->read(target, name, value, refusal);
    case PM_FIELD_ONLY: return only(field, name, value, refusal);
    case PM_FIELD_VOID:
    case PM_FIELD_END: return true;
    }
    return true;
}

bool pm_fields_read(const pm_field *fields, json_t *object, const char *place, void *target, pm_refusal *refusal)
{
    const char *name;
    json_t *value;
    if (!json_is_object(object))
        return pm_refuse(refusal, 400, "invalid_type", place, "'%s' must be an object", place ? place : "the body");
    json_object_foreach(object, name, value)
    {
        char full[sizeof(refusal->param)];
        const pm_field *field = fields;
        snprintf(full, sizeof(full), "%s%s%.64s", place ? place : "", place ? "." : "", name);
        while (field->kind != PM_FIELD_END && strcmp(field->name, name) != 0)
            field++;
        if (field->kind == PM_FIELD_END)
            return pm_refuse(refusal, 400, "unknown_parameter", full, "there is no parameter '%s'", full);
        if (!json_is_null(value) && !read_field(field, full, target, value, refusal))
            return false;
    }
    return true;
}
