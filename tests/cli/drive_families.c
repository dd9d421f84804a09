/* Prints the README's table of families, from the support gate. */
#include "model/model.h"

#include <stdio.h>

int main(void)
{
    const char *name, *model_types, *checkpoints;
    printf("| family | model_type | checkpoints |\n| --- | --- | --- |\n");
    for (size_t i = 0; pm_family_at(i, &name, &model_types, &checkpoints); i++)
        printf("| %s | %s | %s |\n", name, model_types, checkpoints);
    return 0;
}
